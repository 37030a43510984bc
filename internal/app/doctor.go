package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/doctor"
	"lmwarden/internal/engine"
	"lmwarden/internal/kvevents"
)

// DoctorOptions are the flags of warden doctor.
type DoctorOptions struct {
	Config string
	Engine []string // URLs
	// Listen is an address on which clients are listened to, empty for none.
	Listen string
}

// errUnwell makes the process exit with 1 after the findings have been printed.
var errUnwell = errors.New("something is missing for good routing (see MISSING above)")

// Doctor examines engines, and then clients that are pointed at it until ctx
// ends.
func Doctor(ctx context.Context, streams IO, o DoctorOptions) error {
	cfg, err := configure(ServeOptions{Config: o.Config, Engine: o.Engine})
	if err != nil {
		return err
	}
	client := engine.NewClient()
	defer client.CloseIdleConnections()
	unwell, sources := false, kvSourcesOf(cfg)
	for _, m := range cfg.Models {
		for _, e := range m.Engines {
			well, err := examine(ctx, streams.Out, client, e, sources)
			if err != nil {
				return err
			}
			unwell = unwell || !well
		}
	}
	if o.Listen != "" {
		return listenToClients(ctx, streams.Out, client, cfg.Models[0].Engines[0], o.Listen)
	}
	if unwell {
		return errUnwell
	}
	return nil
}

// examine prints what one engine offers and says whether nothing is missing.
func examine(ctx context.Context, out io.Writer, client *http.Client, e config.Engine, sources kvSources) (well bool, err error) {
	key, err := revealed(e.APIKey)
	if err != nil {
		return false, err
	}
	fmt.Fprintf(out, "%s\n", e.URL)
	at := doctor.Engine{Base: e.URL.URL(), Key: key}
	if !e.KVEvents.IsZero() {
		at.KVEvents = func(rank int) kvevents.Source {
			from, _ := sources.of(e.URL.String(), rank)
			return from
		}
	}
	report, err := doctor.Examine(ctx, client, at)
	if err != nil {
		fmt.Fprintf(out, "  MISSING  %v\n\n", err)
		return false, ctx.Err()
	}
	fmt.Fprintf(out, "  %s\n", report.Engine)
	printFindings(out, report.Findings)
	fmt.Fprintln(out)
	return doctor.Worst(report.Findings) < doctor.Missing, nil
}

func revealed(s config.Secret) (string, error) {
	if s.IsZero() {
		return "", nil
	}
	return s.Reveal()
}

func printFindings(out io.Writer, findings []doctor.Finding) {
	for _, f := range findings {
		fmt.Fprintf(out, "  %-8s %s\n", f.Level, f.Says)
		if f.Remedy != "" {
			fmt.Fprintf(out, "           -> %s\n", f.Remedy)
		}
	}
}

// listenToClients says of each request what the client sends.
func listenToClients(ctx context.Context, out io.Writer, client *http.Client, e config.Engine, address string) error {
	key, err := revealed(e.APIKey)
	if err != nil {
		return err
	}
	info, err := engine.Discover(ctx, client, e.URL.URL(), key)
	if err != nil {
		return err
	}
	if !config.Loopback(address) {
		return usageErrorf("--listen %q: clients are listened to on loopback only, as 127.0.0.1:8100", address)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	var printing sync.Mutex
	clients, err := doctor.NewClients(e.URL.URL(), key, info.Models[0].ID, info.Serves, func(request string, findings []doctor.Finding) {
		printing.Lock()
		defer printing.Unlock()
		fmt.Fprintf(out, "%s\n", request)
		printFindings(out, findings)
	})
	if err != nil {
		l.Close()
		return err
	}
	at := url.URL{Scheme: "http", Host: l.Addr().String()}
	fmt.Fprintf(out, "Point a client at %s (ANTHROPIC_BASE_URL=%s, or %s/v1 for OpenAI's) and let it take two turns; interrupt to end.\n\n", &at, &at, &at)
	server := &http.Server{Handler: clients, ReadHeaderTimeout: 10 * time.Second}
	ended := context.AfterFunc(ctx, func() { server.Close() })
	defer ended()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("listen to clients: %w", err)
	}
	return nil
}
