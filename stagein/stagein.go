// Package stagein brings datasets in and takes results out. Its one idea is
// that the nodes read a source together, each byte of it once, and that what is
// read goes to its owner at once.
package stagein
