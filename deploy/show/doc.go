// Package show turns what a daemon says of its job into text for people:
// status, progress and the report at the end. Its one idea is that every
// figure is computed from daemon.Status alone, so text and JSON cannot differ.
// It makes no calls and no decisions.
package show
