package app

import (
	"fmt"
	"log/slog"

	"lmwarden/internal/config"
	"lmwarden/internal/tracing"
)

// newTracer is what sends spans to the configured collector, nil without one.
func newTracer(cfg *config.Config, log *slog.Logger) (*tracing.Tracer, error) {
	if cfg.Tracing.Endpoint == "" {
		return nil, nil
	}
	headers := map[string]string{}
	for _, h := range cfg.Tracing.Headers {
		value, err := h.Value.Reveal()
		if err != nil {
			return nil, fmt.Errorf("tracing header %s: %w", h.Name, err)
		}
		headers[h.Name] = value
	}
	v, _, _ := buildVersion()
	return tracing.New(tracing.Options{
		Endpoint: cfg.Tracing.Endpoint, Headers: headers, CA: cfg.Tracing.CA, Sample: cfg.Tracing.Sample, Version: v, Logger: log,
	})
}
