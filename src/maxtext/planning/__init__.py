"""What a configuration will do, from shapes alone: nothing is compiled, no device is touched."""
