package enginesim

import (
	"math"
	"time"
)

// stepWork is what a step has to compute, in the terms of the roofline.
type stepWork struct {
	tokens         int64
	prefillContext int64 // sum over prefill tokens of the tokens each attends to
	decodeContext  int64 // the same over decodes, which read KV state one token each
	loaded         int64 // tokens whose KV state comes from the host
}

// add counts a request's part of the step; its tokens are not yet in computed.
func (w *stepWork) add(c chunk) {
	n, before := int64(c.tokens), int64(c.req.computed)
	w.tokens += n
	w.loaded += int64(c.loaded)
	if n == 1 && c.req.generated > 0 {
		w.decodeContext += before + 1
		return
	}
	w.prefillContext += n*before + n*(n+1)/2
}

// stepCost holds the parameters of the step time in whole picoseconds: integers
// make the model's times the same on every machine.
type stepCost struct {
	overhead, weights, linear, attention, kvRead, load int64
}

func newStepCost(p Params) stepCost {
	const psPerNS, psPerUS, psPerMS = 1e3, 1e6, 1e9
	ps := func(value, unit float64) int64 { return int64(math.Round(value * unit)) }
	return stepCost{
		overhead:  ps(p.OverheadMS, psPerMS),
		weights:   ps(p.WeightsMS, psPerMS),
		linear:    ps(p.LinearUSPerToken, psPerUS),
		attention: ps(p.AttentionNSPerTokenContext, psPerNS),
		kvRead:    ps(p.KVReadUSPerContextToken, psPerUS),
		load:      ps(float64(p.KVBytesPerToken)/p.HostLinkGBPerS, psPerNS), // bytes at GB/s are ns
	}
}

// duration is the roofline of Params: weights are read once per step, and the
// linear layers are bound by that or by their arithmetic; attention comes on top, and what
// is loaded from the host.
func (c stepCost) duration(w stepWork) time.Duration {
	ps := c.overhead + max(c.weights, c.linear*w.tokens) +
		c.attention*w.prefillContext + c.kvRead*w.decodeContext + c.load*w.loaded
	return time.Duration(ps / 1000)
}
