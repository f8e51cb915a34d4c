"""The handlers of the HTTP calls, by subject."""
