"""What load generators measured from outside: one result format a file."""
