"""A simulated pod: real roles over a simulated machine, stepped by a test or by seeded choices."""
