"""The commands: each turns the command line into one call of the service or a tool.

Arguments, the environment and the configuration file are read here, once, and passed down as
values; output and exit codes go back to the user. No other part imports this package, and it
has no rules about jobs. The modules of the tools are loaded when they run, and those
of the daemon once its sockets are open: `delayd-beanstalkd` listens within 100 ms of exec.
"""
