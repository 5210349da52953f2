// Package wait provides the waits of a client that a context can interrupt: for a channel, for a mutex, for work that
// is done in batches. Its one idea is that a signal of the application ends every wait with an errno. It knows neither
// files nor nodes.
package wait
