"""Jobs in worker processes, and the plans of requests."""
