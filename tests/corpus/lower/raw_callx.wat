(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (type (;1;) (func (param i64 i64 i64 i64 i64) (result i64)))
  (import "helper" "1" (func $bpf_map_lookup_elem (;0;) (type 1)))
  (import "helper" "2" (func $bpf_map_update_elem (;1;) (type 1)))
  (import "helper" "3" (func $bpf_map_delete_elem (;2;) (type 1)))
  (import "helper" "5" (func $bpf_ktime_get_ns (;3;) (type 1)))
  (import "helper" "6" (func $bpf_trace_printk (;4;) (type 1)))
  (import "helper" "7" (func $bpf_get_prandom_u32 (;5;) (type 1)))
  (import "helper" "8" (func $bpf_get_smp_processor_id (;6;) (type 1)))
  (import "helper" "93" (func $bpf_spin_lock (;7;) (type 1)))
  (import "helper" "94" (func $bpf_spin_unlock (;8;) (type 1)))
  (import "helper" "130" (func $bpf_ringbuf_output (;9;) (type 1)))
  (import "helper" "131" (func $bpf_ringbuf_reserve (;10;) (type 1)))
  (import "helper" "132" (func $bpf_ringbuf_submit (;11;) (type 1)))
  (import "helper" "133" (func $bpf_ringbuf_discard (;12;) (type 1)))
  (import "helper" "134" (func $bpf_ringbuf_query (;13;) (type 1)))
  (import "helper" "195" (func $bpf_map_lookup_percpu_elem (;14;) (type 1)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;15;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r3 i64) (local $r4 i64) (local $r5 i64) (local $r0 i64)
    i64.const 5
    local.set $r2
    block ;; label = @1
      local.get $r2
      i64.const 1
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_map_lookup_elem
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 2
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_map_update_elem
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 3
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_map_delete_elem
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 5
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_ktime_get_ns
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 6
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_trace_printk
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 7
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_get_prandom_u32
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 8
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_get_smp_processor_id
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 93
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_spin_lock
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 94
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_spin_unlock
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 130
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_ringbuf_output
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 131
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_ringbuf_reserve
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 132
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_ringbuf_submit
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 133
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_ringbuf_discard
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 134
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_ringbuf_query
        local.set $r0
        br 1 (;@1;)
      end
      local.get $r2
      i64.const 195
      i64.eq
      if ;; label = @2
        local.get $r1
        local.get $r2
        local.get $r3
        local.get $r4
        local.get $r5
        call $bpf_map_lookup_percpu_elem
        local.set $r0
        br 1 (;@1;)
      end
      unreachable
    end
    i64.const 2
    local.tee $r0
  )
)
