"""What proves somebody's own kernel right: the cases of `kernels.check`, called by a builder."""
