"""What the ranks of a parallel run did to each other: clocks, collectives, waits, slow ranks."""
