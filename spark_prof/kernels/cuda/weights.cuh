// Streams packed weights from memory to the tensor cores: 16 rows and 128 columns at a time.
//
// spark_prof/kernels/pack.py writes the layout. A unit is 16 rows x 128 columns of a matrix. With
// g = lane / 4 and t = lane % 4 a lane owns rows g and g + 8 of it, and of each 32 columns the
// eight from 8 t on: in a row of activations the four lanes of a group then read 64 bytes in a row.
// Which column is which k of the matrix instruction is free, if both sides take the same order. A
// tile is half a unit: 64 columns. If at most 64 columns are left the last unit has one tile only.
//
// FORMAT: 0 NVFP4, 1 MXFP4, 2 E4M3 with one scale a row, 3 BF16, 4 E4M3 with a float scale for eight
// rows of a unit, 5 integers of four bits with a scale and a zero point for a row of a unit. Of the
// last two the scale multiplies the unit's sums. BF16 is not packed: it is read where the model has
// it, row after row. TOKEN_TILES: 1 for up to 8 tokens, else 2.
// COLUMNS: of the matrix; a multiple of 16.
#pragma once
#include "vectors.cuh"

#include "units.cuh"
