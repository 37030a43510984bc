package telemetry

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// gauges reads the pools when it is scraped, so that a gauge can neither be
// stale nor survive its replica.
type gauges struct {
	pools                                       func() []Pool
	inFlight, waiting, conversations, scrapeAge *prometheus.Desc
	state, running, queued, kvUsed, kvCached    *prometheus.Desc
}

func newGauges(pools func() []Pool) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &gauges{
		pools:         pools,
		inFlight:      desc("warden_in_flight", "Requests that the gateway has open.", "model", "replica"),
		waiting:       desc("warden_waiting", "Requests in the engines' queues and requests that the gateway holds.", "model"),
		state:         desc("warden_replica_state", "The state that the replica is in; always 1.", "model", "replica", "state"),
		running:       desc("warden_engine_running", "Requests in the engine's batch, as it says.", "model", "replica"),
		queued:        desc("warden_engine_waiting", "Requests in the engine's queue, as it says.", "model", "replica"),
		kvUsed:        desc("warden_kv_used_ratio", "Share of the KV cache that running requests use, as the engine says.", "model", "replica"),
		kvCached:      desc("warden_kv_cached_tokens", "Tokens in the engine's prefix cache, by its KV events.", "model", "replica"),
		conversations: desc("warden_conversations", "Live conversations whose home the replica is.", "model", "replica"),
		scrapeAge:     desc("warden_scrape_age_seconds", "Time since the last good scrape of the engine.", "model", "replica"),
	}
}

func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.inFlight, g.waiting, g.conversations, g.scrapeAge, g.state, g.running, g.queued, g.kvUsed, g.kvCached} {
		out <- d
	}
}

func (g *gauges) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(d, err)
		}
		out <- m
	}
	for _, p := range g.pools() {
		model := valid(p.Model)
		send(g.inFlight, float64(p.EngineInFlight), model, "engine")
		if p.Waiting >= 0 {
			send(g.waiting, float64(p.Waiting), model)
		}
		for i, r := range p.Replicas {
			replica := strconv.Itoa(i)
			send(g.inFlight, float64(r.InFlight), model, replica)
			send(g.conversations, float64(r.Conversations), model, replica)
			send(g.state, 1, model, replica, valid(r.State))
			known := func(d *prometheus.Desc, v float64) {
				if v >= 0 {
					send(d, v, model, replica)
				}
			}
			known(g.scrapeAge, r.ScrapeAge.Seconds())
			known(g.running, float64(r.Running))
			known(g.queued, float64(r.Waiting))
			known(g.kvUsed, r.KVUsed)
			known(g.kvCached, float64(r.KVCached))
		}
	}
}
