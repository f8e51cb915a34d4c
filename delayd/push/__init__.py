"""Due jobs delivered outward: one sender, and sinks behind one small interface (`push.sinks`)."""
