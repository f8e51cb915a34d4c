"""A durable delayed-job daemon: it keeps each job safe until its time, then hands it out."""

__version__ = "0.1.0"
