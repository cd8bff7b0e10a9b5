"""Random generators and process groups: what every step of a run needs, whatever the method."""
