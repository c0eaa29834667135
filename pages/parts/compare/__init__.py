"""Compare page: choice of mechanisms, views of the results, two plans, published numbers."""
