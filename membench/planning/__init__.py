"""Planning that several methods share: builder, validation, liveness, pools and rewrites of graphs."""
