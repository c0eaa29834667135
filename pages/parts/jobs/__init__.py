"""Work in processes of its own, watched on the page: the jobs, what they call, and plans made at
once or in a worker.

To touch: one engine call is one function in `tasks`.
"""
