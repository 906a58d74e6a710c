(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (type (;1;) (func (param i64 i64 i64 i64) (result i64)))
  (import "map" "0" (memory $sessions (;0;) 1 1 shared))
  (import "helper" "1" (func $bpf_map_lookup_elem (;0;) (type 0)))
  (import "helper" "2" (func $bpf_map_update_elem (;1;) (type 1)))
  (memory $private (;1;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;2;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r6 i64) (local $r0 i64) (local $r3 i64) (local $r4 i64)
    i32.const 16384
    i64.load $private align=1
    local.set $r6
    i32.const 8184
    local.get $r6
    i64.store $private align=1
    i64.const 4611686018427387904
    local.set $r1
    i64.const 4294975488
    local.tee $r2
    i64.const -8
    i64.add
    local.set $r2
    local.get $r1
    local.get $r2
    call $bpf_map_lookup_elem
    local.tee $r0
    i64.eqz
    if ;; label = @1
      i32.const 8168
      local.get $r6
      i64.store $private align=1
      i32.const 8176
      i64.const 1
      i64.store $private align=1
      i64.const 4611686018427387904
      local.set $r1
      i64.const 4294975488
      local.tee $r2
      i64.const -8
      i64.add
      local.set $r2
      i64.const 4294975488
      local.tee $r3
      i64.const -24
      i64.add
      local.set $r3
      i64.const 0
      local.set $r4
      local.get $r1
      local.get $r2
      local.get $r3
      local.get $r4
      call $bpf_map_update_elem
      local.tee $r0
      return
    end
    local.get $r0
    i32.wrap_i64
    i64.load offset=8 align=1
    local.tee $r1
    i64.const 1
    i64.add
    local.set $r1
    local.get $r0
    i32.wrap_i64
    local.get $r1
    i64.store offset=8 align=1
    local.get $r1
    local.tee $r0
  )
)
