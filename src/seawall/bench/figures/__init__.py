"""Groups of figures that the suites are composed of."""
