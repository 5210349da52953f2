// Package job is the job file: everything a daemon has to know about its job
// except the key, which is never written to a file that outlives its reader.
// The keeper (or bivouac up) writes the file, the daemon reads it once.
//
// Invariants: the version is checked before anything else is believed, an
// unknown field is an error, and Validate reports every complaint at once, before
// anything is touched.
//
// The package knows nothing about running nodes, mounts or Slurm.
package job
