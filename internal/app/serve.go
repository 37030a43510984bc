package app

import (
	"context"

	"lmwarden/internal/telemetry"
)

// ServeOptions are the flags of warden serve; what is empty comes from the
// configuration file or its defaults.
type ServeOptions struct {
	Config      string   // file
	Engine      []string // URLs
	Alias       []string
	Listen      string
	AdminListen string
	Data        string
	Policy      string
	LogLevel    string
	LogFormat   string
}

// Serve runs the gateway until ctx ends.
func Serve(ctx context.Context, io IO, o ServeOptions) error {
	cfg, err := configure(o)
	if err != nil {
		return err
	}
	log, err := telemetry.NewLogger(io.Err, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	g, err := NewGateway(cfg, log)
	if err != nil {
		return err
	}
	return g.run(ctx)
}
