// Package job is the job file: everything that a daemon needs to know about its job except the key, which is never
// written to a file that outlives its reader. The keeper (or bivouac up) writes the file, the daemon reads it once.
//
// Invariants: the version is checked before any other field is used, an unknown field is an error, and Validate reports
// all errors at once, before anything is changed.
//
// The package knows nothing about running nodes, mounts or Slurm.
package job
