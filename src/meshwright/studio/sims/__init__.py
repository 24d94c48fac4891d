"""The simulations of the studio: each a pure function from a flat query to a `View`."""
