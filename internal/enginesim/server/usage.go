package server

// usage sums what a request's sequences consumed.
type usage struct {
	completion int
	// cached and created are the counts of the sequence that the engine reports, the last one.
	cached, created int

	part int // whose counts these are
}

func (u *usage) add(e event) {
	u.completion += e.tokens
	if e.first && e.part >= u.part {
		u.part, u.cached, u.created = e.part, e.cached, e.created
	}
}

// wholeUsage is the usage of an answer of chat or completions in one piece. created is the value of
// created_cache_tokens, which completions do not know (nil).
func (s *Server) wholeUsage(prompt int, u usage, created any) object {
	var details any
	if s.details {
		details = object{{"cached_tokens", u.cached}, {"created_cache_tokens", created}, {"multimodal_tokens", nil}}
	}
	return plainUsage(prompt, u.completion).with(
		field{"prompt_tokens_details", details}, field{"completion_tokens_details", nil})
}

// streamUsage is the usage at the end of a stream, where null fields are left out.
func (s *Server) streamUsage(prompt int, u usage, withCreated bool) object {
	usage := plainUsage(prompt, u.completion)
	if !s.details {
		return usage
	}
	details := object{{"cached_tokens", u.cached}}
	if withCreated {
		details = details.with(field{"created_cache_tokens", u.created})
	}
	return usage.with(field{"prompt_tokens_details", details})
}

// runningUsage is what continuous_usage_stats adds to a chunk: nothing when it was not asked for.
func runningUsage(o openAIStream, prompt, completion int) []field {
	if !o.continuous {
		return nil
	}
	return []field{{"usage", plainUsage(prompt, completion).with(field{"completion_tokens_details", nil})}}
}

func plainUsage(prompt, completion int) object {
	return object{{"prompt_tokens", prompt}, {"total_tokens", prompt + completion}, {"completion_tokens", completion}}
}

// anthropicUsage is the usage of a message. With the details the input is only what the cache
// neither held nor took in.
func (s *Server) anthropicUsage(prompt int, u usage) object {
	if !s.details {
		return object{{"input_tokens", prompt}, {"output_tokens", u.completion}}
	}
	return object{
		{"input_tokens", prompt - u.cached - u.created}, {"output_tokens", u.completion},
		{"cache_creation_input_tokens", u.created}, {"cache_read_input_tokens", u.cached},
	}
}

// responsesUsage shows the cache counts whatever the server's flags are.
func responsesUsage(prompt int, u usage) object {
	return object{
		{"input_tokens", prompt},
		{"input_tokens_details", object{
			{"cached_tokens", u.cached}, {"cache_write_tokens", u.created},
			{"input_tokens_per_turn", list{}}, {"cached_tokens_per_turn", list{}},
		}},
		{"output_tokens", u.completion},
		{"output_tokens_details", object{
			{"reasoning_tokens", 0}, {"tool_output_tokens", 0},
			{"output_tokens_per_turn", list{}}, {"tool_output_tokens_per_turn", list{}},
		}},
		{"total_tokens", prompt + u.completion},
	}
}
