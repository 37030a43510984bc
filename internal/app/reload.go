package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"lmwarden/internal/config"
)

// reloads is what came of the configurations that a running gateway was given.
// Guarded by Gateway.mu.
type reloads struct {
	current *config.Config // the last one that was taken; what waits for a restart is in it
	at      time.Time      // when
	failed  error          // of the last one, nil when it was taken
	waiting []string       // keys of the last one that is in force that wait for a restart
}

// Reload reads a configuration and puts its models in force without a break:
// conversations, counts and open requests stay. What else it changes waits for a
// restart, which the log and the pages say. A configuration that cannot be read
// or put in force changes nothing; that is logged, shown, and returned.
func (g *Gateway) Reload(ctx context.Context, read func() (*config.Config, error)) error {
	cfg, changes, waiting, err := g.reload(ctx, read)
	if err != nil {
		g.log.Error("configuration not reloaded: the former one stays in force", "error", err.Error())
		g.events.Add("bad", "", "The configuration was not reloaded; the former one stays in force.")
	} else {
		g.log.Info("configuration reloaded", "changes", orNone(changes))
		g.events.Add("info", "", "Configuration reloaded; changes: "+orNone(changes)+".")
		if len(waiting) > 0 {
			g.log.Warn("part of the configuration waits for a restart", "keys", strings.Join(waiting, ", "))
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reloads.failed = err
	if err == nil {
		g.reloads.waiting, g.reloads.current, g.reloads.at = waiting, cfg, time.Now()
	}
	return err
}

// askReload makes run read the configuration again and says what came of it.
func (g *Gateway) askReload(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case g.rereads <- answer:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *Gateway) reload(ctx context.Context, read func() (*config.Config, error)) (cfg *config.Config, changes, waiting []string, err error) {
	if cfg, err = read(); err != nil {
		return nil, nil, nil, err
	}
	models, err := poolOptions(cfg, g.log)
	if err != nil {
		return nil, nil, nil, err
	}
	tracer, err := newTracer(cfg, g.log)
	if err != nil {
		return nil, nil, nil, err
	}
	// Who is let in changes first: it fails before anything has changed, and keys
	// that were taken away end at once.
	if err := g.guards.set(cfg); err != nil {
		return nil, nil, nil, err
	}
	if changes, err = g.models.Reconfigure(ctx, models); err != nil {
		return nil, nil, nil, errors.Join(err, g.guards.set(g.current()))
	}
	g.traces.Set(tracer) // also when the keys are equal: what they refer to may have changed
	if was := g.current(); !reflect.DeepEqual(was.Tracing, cfg.Tracing) {
		changes = append(changes, "tracing")
	}
	if was := g.current(); !reflect.DeepEqual(was.Keys, cfg.Keys) {
		changes = append(changes, "keys")
	}
	if was := g.current(); !maps.Equal(modelLimits(was), modelLimits(cfg)) {
		changes = append(changes, "limits of models")
	}
	if was := g.current(); !reflect.DeepEqual(kvSourcesOf(was), kvSourcesOf(cfg)) {
		changes = append(changes, "KV events")
	}
	return cfg, changes, needRestart(g.cfg, cfg), nil
}

// current is the configuration in force, but for what waits for a restart.
func (g *Gateway) current() *config.Config {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reloads.current
}

// atOnce are the keys that a reload puts in force. All others are read once, when
// the process starts.
var atOnce = []string{"models", "timeouts.stuck", "limits.waiting", "limits.wait", "keys", "admin.password", "tracing"}

// needRestart lists the keys whose values differ and wait for a restart.
func needRestart(was, is *config.Config) []string {
	return differing("", reflect.ValueOf(*was), reflect.ValueOf(*is))
}

func differing(prefix string, was, is reflect.Value) (keys []string) {
	for i := range was.NumField() {
		field := was.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		key := prefix + name
		switch {
		case !field.IsExported() || slices.Contains(atOnce, key):
		case field.Type.Kind() == reflect.Struct:
			keys = append(keys, differing(key+".", was.Field(i), is.Field(i))...)
		case !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()):
			keys = append(keys, key)
		}
	}
	return keys
}

// warnings are what an operator should see on every page.
func (g *Gateway) warnings() []string {
	now := *g.current()
	now.Listen, now.Admin.Listen = g.cfg.Listen, g.cfg.Admin.Listen
	all := openListeners(&now)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.reloads.failed; err != nil {
		all = append(all, fmt.Sprintf("The configuration was not reloaded, the former one stays in force: %v", err))
	}
	if keys := g.reloads.waiting; len(keys) > 0 {
		all = append(all, fmt.Sprintf("Changed in the configuration, but in force only after a restart: %s.", strings.Join(keys, ", ")))
	}
	return all
}

func orNone(changes []string) string {
	if len(changes) == 0 {
		return "none"
	}
	return strings.Join(changes, "; ")
}
