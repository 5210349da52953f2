package raftstore

import (
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/sirupsen/logrus"
)

// raftLogger logs messages of Raft at debug level: Raft warns of every vote and retry.
func raftLogger(log *logrus.Entry) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Output: io.Discard})
	l.RegisterSink(logSink{log})
	return l
}

type logSink struct{ log *logrus.Entry }

// Accept logs a message of Raft.
func (s logSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	if level < hclog.Debug || !s.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	fields := logrus.Fields{"raft_level": level.String()}
	for i := 0; i+1 < len(args); i += 2 {
		fields[fmt.Sprint(args[i])] = fmt.Sprint(args[i+1])
	}
	s.log.WithFields(fields).Debug(msg)
}
