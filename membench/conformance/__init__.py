"""The contract: what every strategy has to do on every network, for the tests and for packages that add to membench."""
