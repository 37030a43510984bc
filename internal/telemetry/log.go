// Package telemetry is what a gateway tells machines about itself: the process
// log and the Prometheus metrics. It knows no other package of the gateway; its
// owner maps what happened to the types here. It keeps no history and draws
// nothing.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
)

// NewLogger writes to w from level ("debug", "info", "warn" or "error") up, as
// "text" or "json". Times are in UTC.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	least, ok := levels[level]
	if !ok {
		return nil, fmt.Errorf("unknown log level %q; allowed: debug, info, warn, error", level)
	}
	o := &slog.HandlerOptions{Level: least, ReplaceAttr: utc}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("unknown log format %q; allowed: text, json", format)
}

func utc(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime {
		a.Value = slog.TimeValue(a.Value.Time().UTC())
	}
	return a
}
