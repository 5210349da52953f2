// Package show formats the status of a job for people: status, progress and the final report. Its one idea is that
// every figure is computed from daemon.Status alone, so that text and JSON cannot differ. It makes no calls and no
// decisions.
package show
