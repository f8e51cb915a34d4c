"""delayd beside beanstalkd, Redis, RabbitMQ and PostgreSQL, all driven by one load generator."""
