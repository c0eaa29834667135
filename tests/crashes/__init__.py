"""What is left after a crash, and how it goes on."""
