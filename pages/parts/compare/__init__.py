"""The Compare page: choosing and running mechanisms, views of what came out, two plans side by
side.
"""
