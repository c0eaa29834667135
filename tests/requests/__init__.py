"""Random planning requests, checked for valid plans and errors."""
