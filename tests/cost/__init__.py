"""What tests cost: CPU seconds of one pytest process on one core and of every process that it starts."""
