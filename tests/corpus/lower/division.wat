(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64)
    i32.const 16384
    i64.load align=1
    local.set $r0
    i32.const 16392
    i64.load align=1
    local.set $r2
    local.get $r0
    i64.const 10
    i64.div_u
    local.tee $r0
    i64.const -1
    i64.mul
    local.set $r0
    local.get $r2
    i64.eqz
    if (result i64) ;; label = @1
      i64.const 0
    else
      local.get $r0
      local.get $r2
      i64.div_u
    end
    local.set $r0
    local.get $r2
    i64.const 1
    i64.add
    i64.const 1
    i64.le_u
    if (result i64) ;; label = @1
      local.get $r0
      local.get $r2
      i64.mul
    else
      local.get $r0
      local.get $r2
      i64.div_s
    end
    local.set $r0
    local.get $r2
    i64.eqz
    if (result i64) ;; label = @1
      local.get $r0
    else
      local.get $r0
      local.get $r2
      i64.rem_u
    end
    local.set $r0
    local.get $r2
    i64.eqz
    if (result i64) ;; label = @1
      local.get $r0
    else
      local.get $r0
      local.get $r2
      i64.rem_s
    end
    local.set $r0
    local.get $r2
    i32.wrap_i64
    i32.eqz
    if (result i32) ;; label = @1
      i32.const 0
    else
      local.get $r0
      i32.wrap_i64
      local.get $r2
      i32.wrap_i64
      i32.div_u
    end
    i64.extend_i32_u
    local.set $r0
    local.get $r2
    i32.wrap_i64
    i32.const 1
    i32.add
    i32.const 1
    i32.le_u
    if (result i32) ;; label = @1
      local.get $r0
      i32.wrap_i64
      local.get $r2
      i32.wrap_i64
      i32.mul
    else
      local.get $r0
      i32.wrap_i64
      local.get $r2
      i32.wrap_i64
      i32.div_s
    end
    i64.extend_i32_u
    local.tee $r0
    i32.wrap_i64
    i32.const 7
    i32.rem_u
    i64.extend_i32_u
    local.set $r0
    local.get $r2
    i32.wrap_i64
    i32.eqz
    if (result i32) ;; label = @1
      local.get $r0
      i32.wrap_i64
    else
      local.get $r0
      i32.wrap_i64
      local.get $r2
      i32.wrap_i64
      i32.rem_s
    end
    i64.extend_i32_u
    local.tee $r0
  )
)
