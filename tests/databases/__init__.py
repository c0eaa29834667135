"""Tables that are counted where they are, in databases of several makers."""
