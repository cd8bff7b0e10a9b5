"""Collections and jobs of the service: uploaded images, a table of jobs, and their processes."""
