"""Figures that suites share or that fill a module of their own."""
