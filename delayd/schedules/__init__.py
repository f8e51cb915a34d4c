"""Recurring jobs: when they are due (`schedules.recurrence`)."""
