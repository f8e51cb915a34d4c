"""What can be done with jobs and topics: functions over the engine's state, by subject."""
