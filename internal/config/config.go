// Package config is the configuration of a gateway: its types, its defaults,
// the reading of a YAML file and the checks. Messages name the file, the line
// and the column, show the line itself, and say what is allowed. The package
// knows no policy, opens no socket and starts nothing; a Config made from flags
// goes through the same checks as one made from a file.
package config

import (
	"os"
	"path/filepath"
	"time"

	"lmwarden/internal/access"
)

// DefaultAlias is the alias that the only model of a gateway always has: Claude
// Code asks for several model names of its own.
const DefaultAlias = "claude-*"

// Config is all that a gateway is told. Default gives one to start from.
type Config struct {
	// Listen is the address for clients, HOST:PORT.
	Listen string `yaml:"listen"`
	// TLS is for the clients' address; without it they speak plain HTTP.
	TLS   TLS   `yaml:"tls,omitempty"`
	Admin Admin `yaml:"admin"`
	// Keys are the API keys of clients; without any, everybody is served.
	Keys []Key `yaml:"keys,omitempty"`
	// Data is the folder of the history and the conversation table; :memory: keeps
	// nothing.
	Data    string  `yaml:"data"`
	Models  []Model `yaml:"models"`
	History History `yaml:"history"`
	Session Session `yaml:"session"`
	Limits  Limits  `yaml:"limits"`
	// ScrapeInterval is how often each engine's metrics are read.
	ScrapeInterval Duration `yaml:"scrape_interval"`
	Timeouts       Timeouts `yaml:"timeouts"`
	Log            Log      `yaml:"log"`
	Tracing        Tracing  `yaml:"tracing"`
	// StopTimeout is how long open answers may go on when the gateway stops.
	StopTimeout Duration `yaml:"stop_timeout"`

	source source
}

// Priorities of a key; the first is the default.
const (
	Interactive = "interactive"
	Batch       = "batch"
)

// MemoryOnly is the value of Config.Data that keeps nothing on disk.
const MemoryOnly = ":memory:"

// Admin is the listener of the console, the admin API and the metrics.
type Admin struct {
	// Listen is its address, HOST:PORT.
	Listen string `yaml:"listen"`
	// Password is the hash that warden keys password prints; with it operators log
	// in, and programs send it as the password of any user.
	Password Secret `yaml:"password,omitempty"`
	// Open allows an address that is not on loopback although nobody logs in.
	Open bool `yaml:"open"`
	// Hosts are further host names by which a browser on the same machine may ask
	// for the console, as behind a reverse proxy.
	Hosts []string `yaml:"hosts,omitempty"`
	// TLS is for this address.
	TLS TLS `yaml:"tls,omitempty"`
}

// TLS names the files of a certificate, read again when they change.
type TLS struct {
	// Certificate is a PEM file with the certificate and its chain.
	Certificate string `yaml:"certificate,omitempty"`
	// Key is the PEM file of its private key.
	Key string `yaml:"key,omitempty"`
}

// On says whether a certificate is configured.
func (t TLS) On() bool { return t.Certificate != "" }

// Key is the API key of a client and what its holder may take.
type Key struct {
	// Name stands in logs and on pages.
	Name string `yaml:"name"`
	// Hash is what warden keys new prints; the key itself is kept nowhere.
	Hash access.KeyHash `yaml:"hash"`
	// Models are the names that it may ask for, with * as in qwen-*; without any,
	// all.
	Models []string `yaml:"models,omitempty"`
	// InFlight is how many requests it may have open at once; 0 means any number.
	InFlight int `yaml:"in_flight,omitempty"`
	// PerMinute is how many requests it may begin in a minute, a tenth of them at
	// once; 0 means any number.
	PerMinute int `yaml:"per_minute,omitempty"`
	// Priority is interactive, or batch for requests that wait behind all others.
	Priority string `yaml:"priority,omitempty"`
}

// Model is one model and its engines.
type Model struct {
	// Name is what clients ask for; empty means the first name that the engine
	// serves.
	Name string `yaml:"name"`
	// ServedName is the engine's own name for it; empty means that the engine is
	// asked.
	ServedName string `yaml:"served_name,omitempty"`
	// Aliases are further names, with * as in claude-*.
	Aliases []string `yaml:"aliases,omitempty"`
	// Policy is the rule by which requests get a replica.
	Policy string `yaml:"policy"`
	// Shadow is a policy that is asked about each request and decides nothing: what
	// it would have done is counted.
	Shadow string `yaml:"shadow,omitempty"`
	// SpillThreshold is how many requests a home may have in flight before one
	// leaves it.
	SpillThreshold SpillThreshold `yaml:"spill_threshold"`
	// InFlight is how many of its requests all clients together may have open at
	// once, those included that wait at the gateway; 0 means any number.
	InFlight int `yaml:"in_flight,omitempty"`
	// PerMinute is how many of its requests may begin in a minute, a tenth of them at
	// once; 0 means any number.
	PerMinute int `yaml:"per_minute,omitempty"`
	// Patience is how long a request waits, with the policy patience, before the
	// next replica is kept for it.
	Patience Patience `yaml:"patience"`
	// HostTier says whether the engines keep in the host's memory what their caches
	// push out; auto is what they say.
	HostTier string   `yaml:"host_tier"`
	Engines  []Engine `yaml:"engines"`
	// LiveFor is how long after its last request a conversation counts as live.
	LiveFor Duration `yaml:"live_for"`
	// IdleFor is how long an idle conversation keeps its home; by default
	// session.idle_for.
	IdleFor Duration `yaml:"idle_for"`
	// Waiting is how many of its requests may wait at the gateway; by default
	// limits.waiting.
	Waiting int `yaml:"waiting"`
	// Wait is the longest wait at the gateway that may be likely; by default
	// limits.wait.
	Wait Duration `yaml:"wait"`
}

// Engine is one server of a model.
type Engine struct {
	// URL is the server's base address, as in http://127.0.0.1:8000.
	URL URL `yaml:"url"`
	// Ranks is how many replicas stand behind the URL; 0 means that the engine is
	// asked.
	Ranks int `yaml:"ranks,omitempty"`
	// APIKey is sent to the engine as a bearer token.
	APIKey Secret `yaml:"api_key,omitempty"`
	// KVEvents is where the first rank publishes its KV events, as in
	// tcp://127.0.0.1:5557; further ranks count the port up. Without it nobody listens.
	KVEvents Endpoint `yaml:"kv_events,omitempty"`
	// KVEventsReplay is where the first rank sends former KV events again, counted up
	// as well.
	KVEventsReplay Endpoint `yaml:"kv_events_replay,omitempty"`
}

// Session is how conversations are recognised and how long they are known.
type Session struct {
	// Headers are request headers that carry a session id, looked at in order,
	// after the gateway's own and before those of known clients.
	Headers []string `yaml:"headers,omitempty"`
	// IdleFor is how long an idle conversation is remembered.
	IdleFor Duration `yaml:"idle_for"`
	// MaxConversations bounds the table; the one idle longest leaves first.
	MaxConversations int `yaml:"max_conversations"`
}

// History is how much is kept of what became of requests.
type History struct {
	// Keep is how long single requests are kept.
	Keep Duration `yaml:"keep"`
	// KeepTotals is how long their hourly sums are kept.
	KeepTotals Duration `yaml:"keep_totals"`
	// MaxSize bounds the database; the oldest requests leave first. In memory it is
	// 64MiB at most.
	MaxSize ByteSize `yaml:"max_size"`
}

// Limits bound what clients may take.
type Limits struct {
	// Body is the largest request body.
	Body ByteSize `yaml:"body"`
	// Buffered is what the bodies of all requests that wait for their answer may
	// take; beyond it requests are refused as overload.
	Buffered ByteSize `yaml:"buffered"`
	// BodyStall is how long a client may send nothing within a body.
	BodyStall Duration `yaml:"body_stall"`
	// ClientStall is how long a client may take nothing of its answer.
	ClientStall Duration `yaml:"client_stall"`
	// Waiting is how many requests of a model may wait at the gateway; beyond it
	// they are refused as overload.
	Waiting int `yaml:"waiting"`
	// Wait is the longest wait at the gateway that may be likely; a request that has
	// waited twice as long is refused.
	Wait Duration `yaml:"wait"`
	// KeepAlive is what a stream gets while its request waits at the gateway: ping
	// (an event, on Anthropic streams only), comment (a line, on all), auto (a ping
	// on Anthropic streams, a comment on others) or none.
	KeepAlive string `yaml:"keep_alive"`
	// KeepAliveAfter is how long a stream has waited until it gets one, and the time
	// between two.
	KeepAliveAfter Duration `yaml:"keep_alive_after"`
}

// Timeouts bound what an engine may take.
type Timeouts struct {
	// Connect is the time to open a connection.
	Connect Duration `yaml:"connect"`
	// FirstByte is the time from the request to the first byte of its answer, which
	// an announcement or a sign of life is not. An overloaded engine queues for
	// minutes, and an answer that does not stream is generated whole before its
	// first byte.
	FirstByte Duration `yaml:"first_byte"`
	// StreamIdle is the longest silence within a started stream.
	StreamIdle Duration `yaml:"stream_idle"`
	// Stuck is how long a replica with requests in flight may show no sign of
	// progress before it gets no new conversations.
	Stuck Duration `yaml:"stuck"`
	// EngineIdle is how long a connection to an engine is kept for reuse. It must
	// be shorter than the engine's own limit: 5 s for vLLM.
	EngineIdle Duration `yaml:"engine_idle"`
}

// Log is the process log on standard error.
type Log struct {
	// Level is the least weight of a line that is written: debug, info, warn or
	// error.
	Level string `yaml:"level"`
	// Format is text or json.
	Format string `yaml:"format"`
}

// Tracing sends a span of each request to a collector.
type Tracing struct {
	// Endpoint is the collector's base address for OTLP over HTTP, as in
	// http://127.0.0.1:4318; without it nothing is traced.
	Endpoint string `yaml:"endpoint,omitempty"`
	// CA is a PEM file with the certificates to trust at a collector with https, in
	// place of the system's.
	CA string `yaml:"ca,omitempty"`
	// Sample is the share of requests that is traced, 0 to 1. A client that traces
	// its requests decides for them itself.
	Sample float64 `yaml:"sample"`
	// Headers go with each export.
	Headers []Header `yaml:"headers,omitempty"`
}

// Header is a header that the gateway sends.
type Header struct {
	// Name is as in Authorization.
	Name string `yaml:"name"`
	// Value is what follows it.
	Value Secret `yaml:"value"`
}

var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"text", "json"}
	priorities = []string{Interactive, Batch}
	hostTiers  = []string{"auto", "on", "off"}
	keepAlives = []string{"auto", "ping", "comment", "none"}
)

// Default is the configuration without models. Every default value stands here
// or in Model.fill.
func Default() *Config {
	return &Config{
		Listen:  "127.0.0.1:8100",
		Admin:   Admin{Listen: "127.0.0.1:8101"},
		Data:    stateFolder(),
		History: History{Keep: Duration(30 * 24 * time.Hour), KeepTotals: Duration(400 * 24 * time.Hour), MaxSize: 1 << 30},
		Session: Session{IdleFor: Duration(time.Hour), MaxConversations: 1_000_000},
		Limits: Limits{
			Body: 64 << 20, Buffered: 1 << 30,
			BodyStall: Duration(30 * time.Second), ClientStall: Duration(2 * time.Minute),
			Waiting: 1000, Wait: Duration(5 * time.Minute),
			KeepAlive: "auto", KeepAliveAfter: Duration(15 * time.Second),
		},
		ScrapeInterval: Duration(time.Second),
		Timeouts: Timeouts{
			Connect:    Duration(5 * time.Second),
			FirstByte:  Duration(30 * time.Minute),
			StreamIdle: Duration(10 * time.Minute),
			Stuck:      Duration(15 * time.Second),
			EngineIdle: Duration(4 * time.Second),
		},
		Log:         Log{Level: "info", Format: "text"},
		Tracing:     Tracing{Sample: 1},
		StopTimeout: Duration(30 * time.Second),
	}
}

// File is what the configuration was read from, empty when flags made it.
func (c *Config) File() string { return c.source.name }

// Fill gives every model and key the default of each field that is not set. Parse does
// so itself; a Config whose models come from flags needs the call.
func (c *Config) Fill() {
	for i := range c.Models {
		c.Models[i].fill(c.Session, c.Limits)
	}
	for i := range c.Keys {
		if c.Keys[i].Priority == "" {
			c.Keys[i].Priority = Interactive
		}
	}
}

func (m *Model) fill(s Session, l Limits) {
	if m.Policy == "" {
		m.Policy = "patience"
	}
	if m.HostTier == "" {
		m.HostTier = "auto"
	}
	if m.LiveFor == 0 {
		m.LiveFor = Duration(10 * time.Minute)
	}
	if m.IdleFor == 0 {
		m.IdleFor = s.IdleFor
	}
	if m.Waiting == 0 {
		m.Waiting = l.Waiting
	}
	if m.Wait == 0 {
		m.Wait = l.Wait
	}
}

// stateFolder is the user's folder for state by the XDG convention, or
// MemoryOnly for a user without a home.
func stateFolder() string {
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "lmwarden")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return MemoryOnly
	}
	return filepath.Join(home, ".local", "state", "lmwarden")
}
