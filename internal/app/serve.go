package app

import (
	"context"
	"os"
	"runtime"

	"lmwarden/internal/config"
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

// Serve runs the gateway until ctx ends. Each value of reload makes it read its
// configuration file again. Sockets that systemd hands over (named "clients" and
// "admin") take the place of the addresses to listen on.
func Serve(ctx context.Context, io IO, o ServeOptions, reload <-chan os.Signal) error {
	on, err := inherited()
	if err != nil {
		return err
	}
	o = on.over(o)
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
	// The collector waits for as much garbage as there is live memory, which of a
	// small heap means dozens of collections a second. It counts this array too,
	// which takes no memory since nobody touches it.
	ballast := make([]byte, 8<<20)
	defer runtime.KeepAlive(ballast)
	return g.run(ctx, on, reload, func() (*config.Config, error) { return configure(o) })
}
