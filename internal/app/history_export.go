package app

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/stats"
)

// ExportOptions are the flags of warden stats export.
type ExportOptions struct {
	Since  string // a length of time or a time; empty for all
	Model  string
	Format string // one of ExportFormats
	Data   string // folder; empty means that of Config, else the default
	Config string // file
}

// ExportFormats are the formats of an export in words.
func ExportFormats() string { return strings.Join(stats.Formats(), " or ") }

// ExportStats writes the requests of a gateway's history. The gateway may run.
func ExportStats(ctx context.Context, io IO, o ExportOptions) error {
	since, err := sinceWhen(time.Now(), o.Since)
	if err != nil {
		return err
	}
	data := o.Data
	if data == "" {
		cfg := config.Default()
		if o.Config != "" {
			if cfg, err = load(o.Config); err != nil {
				return err
			}
		}
		data = cfg.Data
	}
	if data == config.MemoryOnly {
		return usageErrorf("--data %s: a history in memory can be read by its gateway only", config.MemoryOnly)
	}
	err = stats.Export(ctx, filepath.Join(data, historyFile), stats.ExportOptions{Since: since, Model: o.Model, Format: o.Format}, io.Out)
	if q := new(stats.QueryError); errors.As(err, &q) {
		return usageErrorf("--%v", q)
	}
	return err
}

// sinceWhen reads a length of time up to now, or a time.
func sinceWhen(now time.Time, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := stats.ParseLength(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usageErrorf("--since %q: must be a length of time (24h, 7d) or a time (2026-10-04T08:00:00Z)", text)
	}
	return t, nil
}
