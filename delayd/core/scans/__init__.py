"""What looks at many jobs, a slice at a time: listings, calendars, bulk operations, clears."""
