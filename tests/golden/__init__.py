"""What the commands print of every recording in `tests/data`, compared with what is stored.

python -m tests.golden           compare; prints what differs and exits with 1
python -m tests.golden --write   renew `expected` after an intended change
"""
