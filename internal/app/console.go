package app

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/session"
	"lmwarden/internal/telemetry"
	"lmwarden/internal/web"
)

// benchmarksFolder holds measurements for the console, in the data folder.
const benchmarksFolder = "benchmarks"

// newConsole joins the console with what it shows.
func (g *Gateway) newConsole(metrics *telemetry.Metrics, exposition http.Handler) (*web.Handler, error) {
	g.events = web.NewEventLog(g.consolePools)
	g.events.Add("info", "", startedSentence(g.table.Len()))
	v, _, _ := buildVersion()
	benchmarks := ""
	if g.cfg.Data != config.MemoryOnly {
		benchmarks = filepath.Join(g.cfg.Data, benchmarksFolder)
	}
	return web.New(web.Options{
		Pools:         g.consolePools,
		Conversations: g.table,
		Metrics:       exposition,
		Log:           g.log,
		Version:       v,
		Hosts:         g.cfg.Admin.Hosts,
		Logins:        g.guards.logins,
		DefaultAlias:  config.DefaultAlias,
		Warnings:      g.warnings,
		Ready:         g.ready,
		Unassigned:    g.models.Unassigned,
		KVEvents:      g.kvView,
		Tokens: func(model string) web.Tokens {
			t := metrics.Tokens(model)
			return web.Tokens{Cached: t.Cached, Computed: t.Computed, Unmeasured: t.Unmeasured}
		},
		History:    g.history,
		Events:     g.events.Newest,
		Settings:   g.settings,
		Reload:     g.askReload,
		ClientURL:  g.URL,
		Benchmarks: benchmarks,
		Cancel:     g.proxy.Cancel,
	})
}

func startedSentence(conversations int) string {
	switch conversations {
	case 0:
		return "The warden started."
	case 1:
		return "The warden started; 1 conversation loaded."
	}
	return fmt.Sprintf("The warden started; %d conversations loaded.", conversations)
}

// settings is the running configuration for the console.
func (g *Gateway) settings() web.Settings {
	s := web.Settings{Keeps: g.keeps(), Keys: g.guards.gate.View()}
	for _, p := range g.models.Pools() {
		limits, open := g.guards.gate.Model(p.Name())
		s.Limits = append(s.Limits, web.ModelLimits{Model: p.Name(), Limits: limits, Open: open})
	}
	_, s.Commit, s.Go = buildVersion()
	g.mu.Lock()
	r := g.reloads
	g.mu.Unlock()
	s.Path, s.Loaded, s.Waiting = r.current.File(), r.at, r.waiting
	if r.failed != nil {
		s.Failed = r.failed.Error()
	}
	text, err := r.current.Print()
	if err != nil {
		text = []byte(err.Error())
	}
	// Print leaves the hashes of keys, so that what it printed can be a file again.
	for _, k := range r.current.Keys {
		text = bytes.ReplaceAll(text, []byte(k.Hash.String()), []byte(config.Mask))
	}
	s.YAML = string(text)
	return s
}

// keeps says what is kept, where and for how long.
func (g *Gateway) keeps() []string {
	where := "in the memory of this process"
	if g.cfg.Data != config.MemoryOnly {
		where = "in " + g.cfg.Data
	}
	h := g.cfg.History
	all := []string{
		fmt.Sprintf("Conversations and their homes, %s: for %s after the last request, at most %d.", where, g.cfg.Session.IdleFor, g.cfg.Session.MaxConversations),
		fmt.Sprintf("Finished requests, %s: single ones for %s, hourly sums for %s, at most %s.", where, days(h.Keep.D()), days(h.KeepTotals.D()), h.MaxSize),
		"Decisions: the last 1000 of each model, in memory.",
		"No prompt text and no credential.",
	}
	if s := g.history.State(); s.Sentence != "" {
		all = append(all, s.Sentence)
	}
	return all
}

// days is a length of time for people.
func days(d time.Duration) string {
	if d >= 48*time.Hour && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
	return config.Duration(d).String()
}

// consolePools are the pools for the console. What an operator does to a
// conversation is noted in the table, so that it is saved.
func (g *Gateway) consolePools() []web.Pool {
	pools := web.PoolsOf(g.models)()
	for i, p := range pools {
		pools[i] = notedPool{p, g.table}
	}
	return pools
}

type notedPool struct {
	web.Pool
	table *session.Table
}

func (p notedPool) Release(k session.Key) bool {
	defer p.table.Changed(k)
	return p.Pool.Release(k)
}

func (p notedPool) Move(k session.Key, replica int) error {
	defer p.table.Changed(k)
	return p.Pool.Move(k, replica)
}
