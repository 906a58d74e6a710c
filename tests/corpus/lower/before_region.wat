(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (import "map" "0" (memory $.data (;0;) 1 1 shared))
  (import "map" "1" (memory $table (;1;) 1 1 shared))
  (memory $private (;2;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $key i64) (local $r0 i64)
    i32.const 8188
    i64.const 1
    i64.store32 $private align=1
    i64.const 4611686022722355200
    local.set $r1
    i64.const 4294975488
    local.tee $r2
    i64.const -4
    i64.add
    local.set $r2
    i32.const 8188
    i64.load32_u $private align=1
    local.tee $key
    i64.const 6
    i64.shl
    i64.const 12884901888
    i64.or
    i64.const 0
    local.get $key
    i64.const 4
    i64.lt_u
    select
    local.tee $r0
    i64.eqz
    if ;; label = @1
      i64.const 0
      local.tee $r0
      return
    end
    local.get $r0
    i64.const -8
    i64.add
    local.tee $r0
    i32.wrap_i64
    i32.const 16
    i32.add
    i64.load $table align=1
    local.tee $r0
  )
)
