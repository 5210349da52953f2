// Package model compares the live realm with a plain model of a file system.
// Its one idea is that a history is a script: a list of steps, each one system
// call, that can be generated from a seed, run through the mounts of several
// nodes, run in memory, compared, shortened, printed and run again.
//
// FS is the model: maps and byte slices, with no idea of nodes. Mounts is the
// real thing: system calls in a directory that all mounts show. A step's result
// (errno, bytes, attributes) has to be the model's, and from time to time the
// whole tree, through every mount. What the model itself is worth is shown by
// running the same scripts on a file system of the kernel.
//
// The promise between nodes is close-to-open, so the runner calls fsync on what
// was written through one mount before a step looks at it through another one;
// that is all the help there is.
//
// Concurrently, there are two ways. Workers in directories of their own are
// each compared with a model of their own. Workers on the same names record
// what they did and when; then an order of the successful steps is searched
// that agrees with the times, with every result, and with the tree at the end.
//
// # Script
//
// One step on a line; # begins a comment.
//
//	m0 open h=1 path="a/b" flags=O_CREAT|O_RDWR mode=0644
//	m0 pwrite h=1 off=100 len=5000 seed=7
//	m1 rename path="a/b" to="c" flags=RENAME_NOREPLACE
//
// m0 is the mount. The bytes that are written are a function of seed. A step
// with a handle that is not open is EBADF; one that opens a handle that is open
// closes it first.
package model
