// Package model compares scratch with a plain model of a file system. Its one idea is that a history is a script: a
// list of steps, each one system call, that can be generated from a seed, run through the mounts of several nodes,
// run in memory, compared, shortened, printed and run again.
//
// FS is the model: maps and byte slices, without nodes. Mounts is the system under test: system calls in a directory
// that all mounts show. The result of a step (errno, bytes, attributes) must equal the model's, and so must, from
// time to time, the whole tree through every mount. The model itself is validated by running the same scripts on a
// kernel file system.
//
// Nodes promise close-to-open consistency, so the runner calls fsync on data written through one mount before a step
// reads it through another; it gives no other help.
//
// There are two kinds of concurrent tests. Workers in separate directories are each compared with their own model.
// Workers on the same names record their steps with begin and end times; then the test searches for an order of the
// successful steps that agrees with the times, every result, and the tree at the end.
//
// # Script
//
// One step per line; # begins a comment.
//
//	m0 open h=1 path="a/b" flags=O_CREAT|O_RDWR mode=0644
//	m0 pwrite h=1 off=100 len=5000 seed=7
//	m1 rename path="a/b" to="c" flags=RENAME_NOREPLACE
//
// m0 is the mount. The written bytes are a function of seed. A step with a handle that is not open returns EBADF; one
// that opens an open handle closes it first.
package model
